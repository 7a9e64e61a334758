#!/usr/bin/env bash
# All tests: those that only compute in two processes, then those that start servers, loads and clocks, one at a time.
#
#   bash scripts/test.sh [pytest options]
#
# PYTHON: interpreter with the project and its extra `test` (.venv/bin/python if there is one, else python3).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ -n "${PYTHON:-}" ] || [ ! -x .venv/bin/python ] || python=.venv/bin/python
"$python" -m pytest -n 2 --dist worksteal -m "not alone" "$@"
"$python" -m pytest -m alone "$@"
