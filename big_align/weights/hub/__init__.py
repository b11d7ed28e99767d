"""Repositories of models on a hub: their names, what is fetched of them, and how they are made."""
