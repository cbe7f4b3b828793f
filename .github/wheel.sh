#!/usr/bin/env bash
# Build both distributions into dist/, install them into an empty environment, and use them as a
# learner does, in an empty folder. Run at the root of the checkout, with `build` and `twine`.
set -euo pipefail
python -m build engine --outdir dist
python -m build
python -m twine check --strict dist/*

root=$PWD empty=$(mktemp -d)
python -m venv "$empty/venv"
"$empty/venv/bin/pip" install --quiet --constraint constraints/cuda13.txt \
  dist/numba_cuda_simulator-*.whl "$(ls dist/fa_numba-*.whl)[lessons]"
export PATH="$empty/venv/bin:$PATH"
unset PYTHONPATH
cd "$empty"
fa-numba init
cd my-workbook
fa-numba doctor
fa-numba check ex00a && exit 1      # the stub
course=$(python -c "from fa_numba.workbook.catalog import course; print(course('.'))")
[[ $course != "$root"* ]]
for name in ex00a_thread_index ex02d_safe_softmax_kernel; do
  cp "$course/solutions/$name.py" exercises/
done
fa-numba check ex00a ex02d
fa-numba update
python -m jupyter execute --timeout=300 lessons/00_first_kernels.ipynb
fa-numba handout class
