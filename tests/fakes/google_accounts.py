"""A service account and the address that trades its signature for access tokens."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.fakes.serving import serving


@dataclass
class TokenOffice:
    """Checks each signature and hands out `token-1`, `token-2` and so on."""

    lasts_seconds: int = 3600
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    handed_out: list[str] = field(default_factory=list)
    claims: list[dict[str, object]] = field(default_factory=list)

    def account_file(self, folder: Path, address: str) -> Path:
        """The JSON key of the account, which points here."""
        pem = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file = folder / "account.json"
        account = {
            "type": "service_account",
            "project_id": "p",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": "coach@p.iam.gserviceaccount.com",
            "token_uri": f"{address}/token",
        }
        file.write_text(json.dumps(account))
        return file

    async def token(self, request: web.Request) -> web.Response:
        """OAuth's JWT bearer grant (RFC 7523)."""
        form = await request.post()
        signed, _, signature = str(form["assertion"]).rpartition(".")
        self.key.public_key().verify(
            _decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
        )
        self.claims.append(json.loads(_decoded(signed.split(".")[1])))
        self.handed_out.append(f"token-{len(self.handed_out) + 1}")
        answer = {
            "access_token": self.handed_out[-1],
            "expires_in": self.lasts_seconds,
            "token_type": "Bearer",
        }
        return web.json_response(answer)


@asynccontextmanager
async def open_office(office: TokenOffice) -> AsyncGenerator[str]:
    """Serve on this machine inside the block; yields the address."""
    app = web.Application()
    app.router.add_post("/token", office.token)
    async with serving(app) as address:
        yield address


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
