"""What a config may say about a tower or a tokenizer that is the one of `config.init`."""

FROM_INIT = "from_init"
"""Its name in a config; that of the model in `config.init` replaces it before a run starts."""

TOWER = {FROM_INIT: "big_align.config.components.from_init:TowerFromInit"}
TOKENIZER = {FROM_INIT: "big_align.config.components.from_init:TokenizerFromInit"}


class TowerFromInit:
    """A tower with the settings of the weights that it starts from, but for those given here.

    Args:
      max_length: number of positions of a text tower, at most those that there are.
      dropout: as in the tower; likewise for the others.
      drop_path: rate of stochastic depth.
      fixed_statistics: whether batch-norm statistics are fixed.
      dtype: name of the type of the computation.
      remat: what blocks recompute.
      scan: whether equal blocks run in a loop.
      attention: how attention is computed.
    """

    def __init__(
        self,
        max_length: int | None = None,
        dropout: float | None = None,
        drop_path: float | None = None,
        fixed_statistics: bool | None = None,
        dtype: str | None = None,
        remat: str | None = None,
        scan: bool | None = None,
        attention: str | None = None,
    ): ...


class TokenizerFromInit:
    """The tokenizer of the text tower that a model starts from.

    Args:
      length: tokens of a text, at most the positions of the tower.
      shorten: as in the tokenizer, whose texts are truncated if this is None.
    """

    def __init__(self, length: int | None = None, shorten: str | None = None): ...
