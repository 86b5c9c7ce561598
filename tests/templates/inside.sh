# Runs inside an image, as whoever it starts programs: `sh -s NAME`. Says what was found; fails at the first thing that is not.
set -eu
name=$1
cd /workspace
fail() { echo "not as promised: $*"; exit 1; }
version() { echo "found: $("$@" 2>&1 | head -n 1)"; }

[ "$(id -un) $(id -u) $(id -g)" = "sandbox 1000 1000" ] || fail "the user is $(id)"
[ "$HOME" = /home/sandbox ] && [ "$PWD" = /workspace ] || fail "home is $HOME, folder is $PWD"
echo text >/workspace/file && echo text >"$HOME/file" || fail "/workspace or home cannot be written"
if touch /etc/made 2>/dev/null; then fail "/etc can be written"; fi
if grep -q . /proc/net/route && [ "$(wc -l </proc/net/route)" -gt 1 ]; then fail "there is a route"; fi
for program in bash curl jq git ps; do command -v "$program" >/dev/null || fail "there is no $program"; done
[ "$(echo '{"a": [1, 42]}' | jq '.a[1]')" = 42 ]

case $name in
base)
    version python3 --version
    python3 - <<'PYTHON'
import io, zipfile
import matplotlib, openpyxl, pandas, PIL.Image, requests
frame = pandas.DataFrame({"name": ["a", "b"], "sum": [1, 41]})
frame.to_excel("table.xlsx", index=False)
assert pandas.read_excel("table.xlsx")["sum"].sum() == 42
import matplotlib.pyplot as plot
plot.plot([1, 2], [3, 4]); plot.title("Größe"); plot.savefig("chart.png")
assert PIL.Image.open("chart.png").size[0] > 100
print("found: pandas", pandas.__version__, "openpyxl", openpyxl.__version__, "requests", requests.__version__,
      "matplotlib", matplotlib.__version__, "Pillow", PIL.__version__)
PYTHON
    ;;
python)
    version python3 --version
    python3 -m venv "$HOME/venv" && "$HOME/venv/bin/pip" --version >/dev/null
    printf 'def test_sum():\n    assert 6 * 7 == 42\n' >test_sum.py && python3 -m pytest -q -p no:cacheprovider test_sum.py
    ;;
node)
    version node --version
    version npm --version
    [ "$(node -e 'console.log([1, 41].reduce((a, b) => a + b))')" = 42 ]
    ;;
rust)
    version rustc --version
    cargo new --quiet --vcs none hello && cd hello && cargo run --quiet --offline | grep -q Hello
    ;;
go)
    version go version
    mkdir hello && cd hello && go mod init hello 2>/dev/null
    printf 'package main\nimport "fmt"\nfunc main() { fmt.Println(6 * 7) }\n' >main.go
    [ "$(go run .)" = 42 ]
    ;;
cpp)
    version g++ --version
    printf '#include <iostream>\nint main() { std::cout << 6 * 7 << std::endl; }\n' >main.cpp
    printf 'cmake_minimum_required(VERSION 3.20)\nproject(hello CXX)\nadd_executable(hello main.cpp)\n' >CMakeLists.txt
    cmake -G Ninja -B build . >/dev/null && cmake --build build >/dev/null && [ "$(build/hello)" = 42 ]
    version gdb --version
    ;;
claude-code) version claude --version ;;
opencode) version opencode --version && version rg --version ;;
*) fail "nobody knows $name" ;;
esac
