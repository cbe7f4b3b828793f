"""Set up a Google Colab machine; the lessons' second cell runs it, after a clone to `checkout`."""

import os
import shutil
import subprocess
import sys

checkout = "/content/fa-numba"
extra = "compiler"  # compiles kernels without a GPU
if shutil.which("nvidia-smi"):
    driver = subprocess.run("nvidia-smi", capture_output=True, text=True).stdout
    extra = "cuda12" if "CUDA Version: 12" in driver else "cuda13"
pip = [sys.executable, "-m", "pip", "install", "-q", "-e", f"{checkout}/engine"]
subprocess.run([*pip, "-e", f"{checkout}[lessons,{extra}]"], check=True)
os.chdir(f"{checkout}/notebooks")
if checkout not in sys.path:
    sys.path[:0] = [checkout, f"{checkout}/engine"]
