# The one list of the public names, which `__init__.py` reads too: type checkers and editors follow
# these imports, and a program makes each when it uses the name.

from big_align.config.overrides import load_config as load_config
from big_align.core.errors import UserError as UserError
from big_align.core.types import Objective as Objective
from big_align.evaluators.embedder import Embedder as Embedder
from big_align.evaluators.evaluator import Evaluator as Evaluator
from big_align.losses.blockwise_contrastive import (
    blockwise_contrastive_loss as blockwise_contrastive_loss,
)
from big_align.losses.classification import softmax_cross_entropy as softmax_cross_entropy
from big_align.losses.cluster_discrimination import mlc_loss as mlc_loss
from big_align.losses.cluster_discrimination import mlcd_loss as mlcd_loss
from big_align.losses.cluster_discrimination import unicom_loss as unicom_loss
from big_align.losses.contrastive import contrastive_loss as contrastive_loss
from big_align.losses.sampled_cluster_discrimination import (
    sampled_cluster_loss as sampled_cluster_loss,
)
from big_align.losses.sigmoid import blockwise_sigmoid_loss as blockwise_sigmoid_loss
from big_align.losses.sigmoid import sigmoid_loss as sigmoid_loss
from big_align.losses.supervised_contrastive import (
    blockwise_supervised_contrastive_loss as blockwise_supervised_contrastive_loss,
)
from big_align.losses.supervised_contrastive import (
    supervised_contrastive_loss as supervised_contrastive_loss,
)
from big_align.losses.tag_recognition import find_tags as find_tags
from big_align.losses.tag_recognition import tag_recognition_loss as tag_recognition_loss
from big_align.parallel.meshes import make_mesh as make_mesh
from big_align.parallel.shards import Shards as Shards
from big_align.runs.build import make_loader as make_loader
from big_align.runs.pipelines import as_dataset as as_dataset
from big_align.runs.train import train as train
from big_align.training.layer_rates import LayerRates as LayerRates
from big_align.training.optimizers import make_optimizer as make_optimizer
from big_align.training.optimizers import make_schedule as make_schedule
from big_align.use.inference.loaded_model import LoadedModel as LoadedModel
from big_align.use.inference.loaded_model import load as load
from big_align.use.search.search_index import SearchIndex as SearchIndex
from big_align.use.search.search_index import load_index as load_index
from big_align.weights.api import save as save
from big_align.weights.formats.pretrained import Pretrained as Pretrained

__version__: str
