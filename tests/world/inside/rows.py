"""The table of attempts. Inside a sandbox their code is run; outside, the judge reads what was expected of them."""

import dataclasses
import hashlib
import typing

NAMED = ("named",)
WEB = ("yolo-2", "yolo-3")
PUBLIC = ("development", "verified")
BUILD = ("build",)
OPEN = WEB + PUBLIC
REACHING = NAMED + OPEN + BUILD
ALL = ("yolo-1",) + REACHING


@dataclasses.dataclass(frozen=True)
class Expected:
    """Where the bytes of an attempt may come to (names of places.PUBLIC or addresses), and whether they must."""

    where: tuple = ()
    must: bool = False
    machine: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    levels: tuple
    expected: Expected
    code: typing.Callable


NOTHING = Expected()
ROWS = []


def only(*where):
    return Expected(where)


def reaches(*where):
    return Expected(where, must=True)


def attempt(name, levels, expected=NOTHING):
    """A row; the code gets a token that everything it sends should hold, and answers with what came back."""

    def add(code):
        assert all(row.name != name for row in ROWS), name
        ROWS.append(Row(name, levels, expected, code))
        return code

    return add


def token(run, name):
    """What this attempt sends, so that it is known wherever it arrives. Fit to be a label of a name."""
    return "t" + hashlib.sha256(f"{run} {name}".encode()).hexdigest()[:15]
