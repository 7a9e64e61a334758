"""The command line: one thin file per command group, each parse → call → render, imported when its command runs."""

from __future__ import annotations

import gc
import os

# Both before anything heavy is imported: start-up is most of the time of a short command.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # or it searches every installed distribution for plugins
gc.set_threshold(200_000)  # importing creates many objects and no garbage
