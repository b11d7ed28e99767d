"""The reference, made of signatures and docstrings: public names, config fields, commands."""

from website.made import commands, config_fields, public_names


def make_pages() -> dict[str, str]:
    """Returns the pages of the reference by their place on the site."""
    return public_names.make_pages() | config_fields.make_pages() | commands.make_pages()
