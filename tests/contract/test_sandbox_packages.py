"""The data-science runtime: what a program may import, quickly, on each tier, and nothing else."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mappa_core.core.errors import SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes.packages import DATA_SCIENCE, importable
from tests.backends import DOCKER, EMBEDDED, open_backend

pytestmark = pytest.mark.anyio

ROOMY = Limits(memory_bytes=2**30, processes=64, wall_seconds=60, cpu_seconds=30)
IMPORTS = """
import time
began = time.process_time()
import numpy, pandas, scipy, sklearn.ensemble, lightgbm
took = time.process_time() - began
frame = pandas.DataFrame({"x": range(60), "y": [n % 2 for n in range(60)]})
frame.to_pickle("frame.pkl")
model = sklearn.ensemble.RandomForestClassifier(n_estimators=3, n_jobs=2).fit(frame[["x"]], frame.y)
booster = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(frame[["x"]], frame.y)
print(took, len(model.predict(pandas.read_pickle("frame.pkl")[["x"]])))
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=[*EMBEDDED, DOCKER])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    chosen = await open_backend(request.param, 2, "data-science")
    yield chosen
    await chosen.close()


async def test_the_libraries_work_and_start_quickly(sandbox: Sandbox, tmp_path: Path):
    result = await sandbox.run(IMPORTS, tmp_path, ROOMY)
    assert result.status is ToolStatus.OK, result.stderr
    cpu_seconds, rows = result.stdout.split()
    # The aim is two; beside other tests a core is slower.
    assert float(cpu_seconds) < 4.0
    assert rows == "60"
    assert [file.name for file in result.written] == ["frame.pkl"]


async def test_our_other_packages_do_not_exist_there(sandbox: Sandbox):
    code = (
        "import importlib.util as u, os\n"
        "print([n for n in ('torch', 'mlflow', 'psycopg', 'mappa_core') if u.find_spec(n)])\n"
        "print(os.environ['OMP_NUM_THREADS'])\n"
        "import numpy; open(numpy.__file__ + '.pth', 'w')"
    )
    result = await sandbox.run(code, None, ROOMY)
    assert result.stdout == "[]\n1\n"
    # The unsafe tier may write what its user may; as root it runs as nobody in particular.
    assert result.status is ToolStatus.NONZERO or sandbox.tier.startswith("unsafe")


def test_what_is_required_comes_with_it():
    shown = importable(DATA_SCIENCE)
    assert {"numpy", "sklearn", "lightgbm", "joblib", "threadpoolctl.py", "dateutil"} <= set(shown)
    assert not {"torch", "pip", "bin", ".."} & set(shown)
    assert all(path.exists() for path in shown.values())


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(SandboxUnavailable, match="no-such-package"):
        importable(["no-such-package"])
