import subprocess
import sys

CODE = """
import torch
torch.set_num_threads(2)
from pipelines.importing import import_ffcv
import_ffcv()
assert torch.get_num_threads() == 2
from ffcv.pipeline.compiler import Compiler
Compiler.set_num_threads(1)
assert torch.get_num_threads() == 2
"""


def test_the_import_of_ffcv_leaves_the_model_s_threads_alone():
    subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", CODE], check=True)
