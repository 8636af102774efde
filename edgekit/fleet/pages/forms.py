"""What a form of the pages sends back.

    form = await read_form(request, access, viewer)         # {"csrf": "...", "device": "porch-1"}

Rules: at most 16 KiB; the token is that of the viewer who was shown the form, or the form is refused.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException  # noqa: TID253
from starlette.requests import Request  # noqa: TID253

from edgekit.fleet.pages.access import Access, Viewer

__all__ = ["read_form"]

_MOST_BYTES = 16 * 1024


async def read_form(request: Request, access: Access, viewer: Viewer) -> dict[str, str]:
    """Raises HTTPException: 413, 415, 400 and, without the viewer's token, 403."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(415, "That is no form.")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, "That form is too large.")
    try:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=50))
    except ValueError as error:
        raise HTTPException(400, "That form cannot be read.") from error
    if not access.is_form_token(viewer, form.get("csrf", "")):
        raise HTTPException(403, "This form has expired. Go back, load the page again, and repeat.")
    return form
