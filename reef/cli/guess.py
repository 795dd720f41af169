"""What was perhaps meant by the name of a scenario or a release that is not there. Asks the daemon, for a moment only."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from reef.client import ReefClient
from reef.errors import ReefError

_WAIT_S = 1.0
_UNKNOWN = re.compile(r"no (scenario|release) '(.+?)'(?: in scenario '(.+?)')?$")


def meant(error: ReefError, home: Path) -> str:
    """``did you mean ...? `` for an unknown name; nothing where none is near, or nobody answers."""
    found = _UNKNOWN.match(error.message)
    if error.status != 404 or found is None:
        return ""
    kind, name, scenario = found.groups()
    try:
        with ReefClient.from_home(home, actor="cli", timeout_s=_WAIT_S) as client:
            if kind == "scenario":
                names = [str(row["name"]) for row in client.get("/reef/scenarios")["scenarios"]]
                near = difflib.get_close_matches(name, names, n=1)
            else:
                names = [str(row["release_id"]) for row in client.releases(scenario)]
                near = [one for one in names if one in (name.lower(), f"r{name}")]
                if not near and names:
                    return f"the newest is {names[0]}; "
    except (ReefError, OSError, KeyError):
        return ""
    return f"did you mean {near[0]}? " if near else ""
