"""A job on Apache Beam: its pipelines, their stages, and what passes between these."""
