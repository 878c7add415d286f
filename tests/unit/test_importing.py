import subprocess
import sys

import pytest

CODE = """
import torch
torch.set_num_threads(2)
from {module} import {name}
{name}()
assert torch.get_num_threads() == 2
from ffcv.pipeline.compiler import Compiler
Compiler.set_num_threads(1)
assert torch.get_num_threads() == 2
"""


@pytest.mark.parametrize(
    ("module", "name"), [("pipelines.importing", "import_ffcv"), ("pipelines.convert.ffcv", "load")]
)
def test_the_import_of_ffcv_leaves_the_model_s_threads_alone(module, name):
    code = CODE.format(module=module, name=name)
    subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", code], check=True)
