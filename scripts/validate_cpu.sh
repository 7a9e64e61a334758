#!/usr/bin/env bash
# Validations of this CPU and their report: the folder that reports/ publishes. Run it when nothing else runs.
#
#   bash scripts/validate_cpu.sh reports/validation_xeon-vm_202611 [validate options, e.g. --threads 1 --cpu-time on a shared machine]
#
# COUNT: how many runs (3). START: number of the first (1); START=4 COUNT=1 adds run_4, and the overview is of all that the folder has.
# BUDGET: seconds of each run (240). PYTHON: interpreter with the project and torch (python3).
set -u
folder=$1
shift
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
first=${START:-1}
for number in $(seq "$first" $((first + ${COUNT:-3} - 1))); do
  "$python" -c "from roofline.cli.main import run; run()" validate tiny-llama-110m --device cpu --budget "${BUDGET:-240}s" -o "$folder/run_$number" "$@"
  echo "run $number: exit $?"
done
"$python" scripts/report_validation.py "$folder"/run_*
