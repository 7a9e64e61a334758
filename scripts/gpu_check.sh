#!/usr/bin/env bash
# One run on a machine with a GPU: marked tests, microbenchmarks, validation; at most 8 minutes, records written as it goes.
#
#   bash scripts/gpu_check.sh              on a machine with a CUDA GPU
#   bash scripts/gpu_check.sh --device cpu a dry run of the same steps, about 3 minutes
#
# OUT: folder of the results (gpu_check_out). PYTHON: interpreter with the project and torch (python3).
# A step that fails or runs out of its time does not stop the next one; steps.tsv says how each ended.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-gpu_check_out}
python=${PYTHON:-python3}
device=cuda
[ "${1:-}" = "--device" ] && device=$2
mkdir -p "$out"
out=$(cd "$out" && pwd)
roofline=("$python" -c "from roofline.cli.main import run; run()")
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

if [ "$device" = cuda ]; then
  tests_s=100 bench_s=240 validate_s=110
else
  tests_s=60 bench_s=30 validate_s=70
fi
printf 'budget: %s s (tests %s, bench %s, validate %s, the rest 30); results in %s\n' \
  $((tests_s + bench_s + validate_s + 30)) $tests_s $bench_s $validate_s "$out"
printf 'step\texit\tseconds\n' >"$out/steps.tsv"

step() { # name, seconds, command…: output to <name>.txt, one line to steps.tsv
  local name=$1 limit=$2 begun=$SECONDS code
  shift 2
  timeout --signal=INT --kill-after=5 "$limit" "$@" >"$out/$name.txt" 2>&1
  code=$?
  printf '%s\t%s\t%s\n' "$name" "$code" $((SECONDS - begun)) | tee -a "$out/steps.tsv"
}

[ "$device" = cuda ] && step nvidia-smi 10 nvidia-smi -q
step detect 20 "${roofline[@]}" hardware detect
step tests "$tests_s" "$python" -m pytest -q -m gpu -p no:cacheprovider tests
step bench $((bench_s + 10)) "${roofline[@]}" bench all --device "$device" --budget "${bench_s}s" \
  --records "$out/bench.jsonl" --table "$out/kernels.csv" --chart "$out/roofs.png" -o "$out/bench.json"
model=llama-3.1-8b
[ "$device" = cpu ] && model=tiny-llama-15m
step validate "$validate_s" "${roofline[@]}" validate "$model" --device "$device" --budget $((validate_s - 10))s -o "$out/validate"
