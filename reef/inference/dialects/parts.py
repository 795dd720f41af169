"""Parts of a request that OpenAI's two dialects, or all three, write alike. Called by the dialects' ``parse``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reef.inference.dialects.fields import mapping, refuse, string
from reef.inference.dialects.prompt import File, Format, Image, Other

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


def read_format(form: Mapping[str, Any], spec: Mapping[str, Any], at: str) -> Format | None:
    """The format ``form`` names, its particulars in ``spec``; None for prose."""
    kind = form.get("type", "text")
    if kind == "text":
        return None
    strict = spec.get("strict") if isinstance(spec.get("strict"), bool) else None
    return Format(
        str(kind),
        mapping(spec.get("schema"), f"{at}.schema"),
        string(spec.get("name"), f"{at}.name"),
        string(spec.get("description"), f"{at}.description"),
        strict,
    )


def read_image(url: Any, detail: Any, at: str) -> Image:
    """A picture by address or as a data URL."""
    if not isinstance(url, str) or not url:
        refuse(at, "an image needs its address or its bytes")
    shown = detail if isinstance(detail, str) and detail != "auto" else ""
    inline = _DATA_URL.fullmatch(url)
    return Image("", inline[1], inline[2], shown, at) if inline else Image(url, detail=shown, at=at)


def read_file(data: Any, url: Any, name: Any, at: str) -> File | Other:
    """A document by address or as a data URL; one that lies at its own provider cannot be read elsewhere."""
    called = name if isinstance(name, str) else ""
    if isinstance(url, str) and url:
        return File(called, url, at=at)
    if not isinstance(data, str) or not data:
        return Other("file_id", at)
    inline = _DATA_URL.fullmatch(data)
    return File(called, "", inline[1], inline[2], at) if inline else File(called, "", "application/pdf", data, at)
