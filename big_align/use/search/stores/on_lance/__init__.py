"""An index in LanceDB."""
