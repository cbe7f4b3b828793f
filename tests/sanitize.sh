#!/bin/sh
# compute-sanitizer over tests on a GPU: sh tests/sanitize.sh PYTHON [SECONDS [CASES]]
#
# The tools run at the same time, for SECONDS at most. CASES is pytest's -k; without it, clusters of
# thread blocks and masks of the user's, for which 110 seconds should do if the kernels come from a cache.
#
# initcheck does not see stores by TMA, and reports their arrays as never written; so kernels that store
# by TMA run under the other three. racecheck does not know that a lane arrives at an mbarrier for its
# warp, or after a named barrier for all threads; so FP8 and the backward passes for Hopper run under the
# others (docs/notes/sanitizer.md).
python=$1 seconds=${2:-110} cases=$3
of_hopper="fp8 or tensor_core_bwd or bwd_persistent or bwd_wide or bwd_varlen or bwd_padded"
log=$(mktemp -d)
if [ "$cases" ]; then
  tools="memcheck racecheck synccheck initcheck" files=$(ls tests/test_*_gpu.py tests/test_gpu.py)
else
  tools="memcheck racecheck synccheck" cases="(small and pairs) or documents or (score and mask)"
  files="tests/test_expressions_gpu.py tests/test_expressions_bwd_gpu.py tests/test_tensor_core_gpu.py"
fi
for tool in $tools; do
  options="" of_tool=$cases on=$files
  case $tool in
    memcheck) options="--report-api-errors no" ;;
    racecheck) of_tool="($cases) and not (simt or $of_hopper)" ;;
    synccheck) options="--num-cuda-barriers 65536" ;;
    initcheck) on="tests/test_gpu.py tests/test_flash_decode_wide_gpu.py" ;;
  esac
  (
    timeout "$seconds" compute-sanitizer --tool $tool $options --error-exitcode 1 "$python" -m pytest \
      -q -n 4 --dist worksteal -m gpu -k "$of_tool" $on > "$log/$tool" 2>&1
    echo $? > "$log/$tool.rc"
  ) &
done
wait
failed=0
for tool in $tools; do
  rc=$(cat "$log/$tool.rc")
  echo "$tool: exit status $rc"  # 124: SECONDS were over
  grep "^=========.*\(SUMMARY\|Error\|Race\|Barrier\|Invalid\|Uninit\)\|^FAILED\| in [0-9.]*s" "$log/$tool" |
    grep -v " 0 errors\| 0 hazards" | sort | uniq -c | sort -rn | head -20
  [ "$rc" = 0 ] || failed=1
done
echo "whole output: $log"
exit $failed
