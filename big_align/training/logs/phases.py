"""What the time of a run goes into."""

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
"""The names of metrics, in words."""
