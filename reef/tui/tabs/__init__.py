"""The seven tabs, in the order of their keys. A new one is a file here and a line below."""

from reef.tui.tabs.base import Tab
from reef.tui.tabs.harness import Harness
from reef.tui.tabs.logs import Logs
from reef.tui.tabs.overview import Overview
from reef.tui.tabs.recipe import Recipe
from reef.tui.tabs.records import Records
from reef.tui.tabs.releases import Releases
from reef.tui.tabs.training import Training

TABS: tuple[type[Tab], ...] = (Overview, Releases, Records, Training, Harness, Recipe, Logs)
