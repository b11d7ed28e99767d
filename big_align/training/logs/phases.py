"""The phases that the time of a run is divided into."""

PHASES = {
    "steps": "steps",
    "repeated_steps": "steps done again after a restart",
    "data": "waiting for data",
    "evaluating": "evaluating",
    "saving": "saving",
    "compiling": "compiling",
    "restoring": "restoring",
    "starting": "starting",
    "down": "between two processes",
}
"""What the phases are called in text, by their names in metrics."""
