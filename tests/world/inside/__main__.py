"""Runs attempts inside a sandbox and prints what each got, as lines of JSON. Arguments: the run, the level, a filter."""

import concurrent.futures
import json
import sys
import time

import rows

import addresses, datagrams, doors, hosts, http_tricks, levels, streams, tls  # noqa: E401,F401  (each fills the table)


def tried(run, row):
    start = time.monotonic()
    try:
        answer = row.code(rows.token(run, row.name)) or b""
        answer = answer.decode("latin-1") if isinstance(answer, bytes) else str(answer)
    except Exception as error:  # Whatever stopped it is its answer.
        answer = f"[{type(error).__name__}: {error}]"
    return {"name": row.name, "answer": answer[:3000], "seconds": time.monotonic() - start}


def main(run, level, only=""):
    wanted = [row for row in rows.ROWS if level in row.levels and only in row.name]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for result in pool.map(lambda row: tried(run, row), wanted):
            print(json.dumps(result), flush=True)


main(*sys.argv[1:])
