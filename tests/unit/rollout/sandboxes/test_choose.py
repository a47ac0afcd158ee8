"""The table of backends against the configuration's values."""

from typing import get_args

import pytest

from mappa_core.core.errors import SandboxUnavailable
from mappa_core.rollout.config import SandboxConfig
from mappa_core.rollout.sandboxes.choose import BACKENDS, choose_sandbox


def test_the_configuration_takes_auto_and_what_is_in_the_table() -> None:
    values = get_args(SandboxConfig.model_fields["backend"].annotation)
    assert values == ("auto", *(backend.name for backend in BACKENDS))


def test_auto_never_takes_what_has_no_walls() -> None:
    assert [backend.name for backend in BACKENDS if not backend.auto] == ["unsafe-subprocess"]


@pytest.mark.anyio
async def test_a_server_without_an_address_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="server's address in MAPPA_SANDBOXFUSION_URL"):
        await choose_sandbox("sandbox-fusion", 1)
