"""From raw image-text pairs to training shards: ALIGN's rules (§3) as a job on Apache Beam.

Beam is imported only where pipelines are built (`on_beam/`, `words/`). What
they compute is in functions of this folder that know nothing about Beam.
"""
