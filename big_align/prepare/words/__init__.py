"""Words of captions, counted on Apache Beam for a vocabulary."""
