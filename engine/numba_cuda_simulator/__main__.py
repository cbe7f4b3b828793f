"""python -m numba_cuda_simulator is the command simt."""

import sys

from .command import main

sys.exit(main())
