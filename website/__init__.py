"""The site: pages of the repository and those that are made of the code, for mkdocs."""
