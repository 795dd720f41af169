"""The deployment's keys, and changing the numbers of its recipe while it runs, from the next batch on.

A change lasts until the daemon stops: a start goes by the file. Texts name code, files and programs, so they are read at a
start only. Called by people through CLI and dashboard.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import logging
import typing
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef.config import SECTIONS, Config, Knob, Setting
from reef.daemon.admin import actor_of, body_of
from reef.daemon.agreement import check_agreement
from reef.daemon.local import config_rows
from reef.daemon.services import Services
from reef.daemon.wire import json_response
from reef.errors import BadRequest, Conflict, NotFound
from reef.recipes import Recipe

log = logging.getLogger("reef.daemon")


def knobs_view(config: Config, recipe: type[Recipe]) -> dict[str, Any]:
    """Every key with value, default, origin, help, and when a change applies: ``next_batch`` or ``restart``."""
    live = _live(recipe)
    fields = {f"{name}.{item.name}": item for name, table in SECTIONS.items() for item in dataclasses.fields(table)}
    fields |= {f"reef.{name}": item for name, item in recipe.knobs().items()}
    shown = []
    for name, row in config_rows(config).items():
        rule: Knob = fields[name].metadata["reef"]
        default = fields[name].default
        plain = default if isinstance(default, str | int | float | bool | None) else str(default)
        applies = "next_batch" if name in live else "restart"
        shown.append({"name": name, **row, "default": plain, "help": rule.help, "applies": applies})
    return {"recipe": recipe.__name__, "file": None if config.source is None else str(config.source), "knobs": shown}


def _live(recipe: type[Recipe]) -> set[str]:
    """Keys that may change while the daemon runs: numbers and yes or no of the recipe."""
    hints = typing.get_type_hints(recipe)
    kinds = {name: {*(typing.get_args(hints[name]) or (hints[name],))} - {type(None)} for name in recipe.knobs()}
    return {f"reef.{name}" for name, kind in kinds.items() if kind <= {int, float, bool}}


def changed(services: Services, wanted: Mapping[str, Any], actor: str) -> Config:
    """The configuration with ``wanted`` taken up, name to value; None goes back to what the daemon was started with."""
    recipe = type(services.scenarios.recipe)
    live, known = _live(recipe), {*config_rows(services.config)}
    settings = dict(services.config.recipe_settings)
    for name, value in wanted.items():
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise NotFound(f"no knob {name[:80]!r}", hint=f"{guess}list them with: reef knob", field="knobs")
        if name not in live:
            place = services.config.source or "the file given with reef up -c"
            raise Conflict(
                f"{name} is read at a start only", hint=f"set it in {place}, then: reef down, reef up", code="restart"
            )
        if isinstance(value, dict | list):
            raise BadRequest(
                f"{name} must be a number, true or false", hint=f'{{"knobs": {{"{name}": 16}}}}', field=name
            )
        key = name.removeprefix("reef.")
        settings[key] = Setting(value, f"set by {actor}")
        if value is None and key in services.started_with.recipe_settings:
            settings[key] = services.started_with.recipe_settings[key]
        elif value is None:
            del settings[key]
    return dataclasses.replace(services.config, recipe_settings=settings)


async def knobs(request: Request) -> Response:
    """Every key of the deployment."""
    services: Services = request.app.state.services
    return json_response(knobs_view(services.config, type(services.scenarios.recipe)))


async def change_knobs(request: Request) -> Response:
    """``{"knobs": {"reef.batch_size": 16}}``: from the next batch on, until the daemon stops; null takes it back."""
    services: Services = request.app.state.services
    wanted = (await body_of(request)).get("knobs")
    if not isinstance(wanted, dict) or not wanted:
        raise BadRequest("give the knobs to change", hint='{"knobs": {"reef.batch_size": 16}}', field="knobs")
    if not services.ready:
        raise services.not_ready()
    actor = actor_of(request)

    def work() -> dict[str, Any]:
        with services.changing:
            config = changed(services, wanted, actor)
            recipe = type(services.scenarios.recipe).from_environment(
                services.scenarios.recipe.runtime, config.recipe_settings
            )
            check_agreement(config, recipe)
            services.scenarios.take(recipe)
            services.config = config
        names = ", ".join(f"{name}={'as started' if value is None else value}" for name, value in wanted.items())
        log.info("%s changed %s", actor, names)
        services.bus.publish("knobs", None, names=sorted(wanted))
        return knobs_view(config, type(recipe))

    return json_response(await asyncio.to_thread(work))


routes = [
    Route("/reef/knobs", knobs, methods=["GET"]),
    Route("/reef/knobs", change_knobs, methods=["PATCH"]),
]
