"""Registry of learners. Names and descriptions are read without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from fecam.errors import MissingPackageError, TrainingError
from fecam.registry import Registry, import_class
from fecam.validation import check_keys

if TYPE_CHECKING:
    from fecam.learners.learner import Learner

DECISIONS = ("outputs", "old_rows", "batch_norm")
"""The options of all learners. They change results more than the choice of the method."""


@dataclass(frozen=True)
class Entry:
    """A learner in the registry.

    Parameters
    ----------
    name : str
        Name for `make`.
    description : str
        What it does, in one line.
    keeps : str
        What it keeps between tasks besides the network.
    source : str
        The paper.
    verified : str
        How the implementation was verified.
    location : str
        Its class, as ``package.module:Class``.
    """

    name: str
    description: str
    keeps: str
    source: str
    verified: str
    location: str


_FREE = "fecam.learners.exemplar_free"
_FEW = "fecam.learners.few_shot"
_EXEMPLARS = "fecam.learners.exemplars"
_MOVING = "fecam.learners.moving"
_IMAGES = "images of each class (2,000 in total by default)"

_LEARNERS: Registry[Entry] = Registry(
    "learner",
    {
        entry.name: entry
        for entry in (
            Entry(
                "ft",
                "fine-tuning: cross-entropy on each task, the lower bound",
                "nothing",
                "FACIL (Masana et al. 2022), PyCIL",
                "the cases of one task, frozen rows and a literal loop",
                f"{_FREE}.fine_tuning:FineTuning",
            ),
            Entry(
                "ft-frozen",
                "fine-tuning of the classifier; the network is frozen after the first task",
                "nothing",
                "FACIL (Masana et al. 2022), freeze-after 0",
                "the network is the same after all tasks",
                f"{_FREE}.fine_tuning:FrozenFineTuning",
            ),
            Entry(
                "joint",
                "training on the images of all tasks, the upper bound",
                "all images",
                "FACIL (Masana et al. 2022); from scratch as in PyCIL",
                "equal to training on the whole data set",
                "fecam.learners.exemplars.joint:Joint",
            ),
            Entry(
                "ewc",
                "fine-tuning with a penalty on changes of important weights",
                "the Fisher information and the weights of the last task",
                "Kirkpatrick et al. 2017; merged as in PyCIL",
                "the Fisher information of logistic regression, and both limits of the weight",
                f"{_FREE}.ewc:EWC",
            ),
            Entry(
                "lwf",
                "fine-tuning with distillation of the old outputs",
                "nothing; the old network while a task is learned",
                "Li and Hoiem 2016",
                "weight 0 is fine-tuning; no gradient where both networks agree",
                f"{_FREE}.lwf:LwF",
            ),
            Entry(
                "lwf-mc",
                "binary cross-entropy over all classes, old ones towards the old outputs",
                "nothing; the old network while a task is learned",
                "iCaRL (Rebuffi et al. 2017), without exemplars",
                "equal to binary cross-entropy without old classes",
                f"{_FREE}.lwf:LwFMC",
            ),
            Entry(
                "muc",
                "LwF with side classifiers that disagree about unlabelled images",
                "three side classifiers of the last task; the old network while a task is learned",
                "Liu et al. 2020 (MUC-LwF); the unlabelled images are an option",
                "weight 0 of the first task is fine-tuning; side classifiers against their loss",
                f"{_FREE}.muc:MUC",
            ),
            Entry(
                "sdc",
                "an embedding trained with triplets; class means follow its drift",
                "a mean per class; the old network while a task is learned",
                "Yu et al. 2020, on E-FT, E-LwF or E-EWC",
                "the drift against its formula; a network that does not move is NCM",
                f"{_FREE}.sdc:SDC",
            ),
            Entry(
                "pass",
                "noisy prototypes, feature distillation, rotations as classes",
                "a mean per class and a radius; the old network while a task is learned",
                "Zhu et al. 2021",
                "the losses against literal ones; replay reaches the classifier only",
                f"{_FREE}.pass_:PASS",
            ),
            Entry(
                "il2a",
                "mixtures of classes as classes, semantic augmentation of old classes",
                "mean and covariance per class; the old network while a task is learned",
                "Zhu et al. 2021, with each class's own covariance",
                "the bound against samples; covariances by class over three tasks",
                f"{_FREE}.il2a:IL2A",
            ),
            Entry(
                "ssre",
                "adapters folded into the network, losses weighted by prototypes",
                "a mean per class; the old network while a task is learned",
                "Zhu et al. 2022; weights of samples without gradient as in PyCIL",
                "folding leaves outputs unchanged; only adapters are trained",
                f"{_FREE}.ssre:SSRE",
            ),
            Entry(
                "l2p",
                "prompts for a frozen vision transformer, chosen by the image",
                "the prompts and their keys",
                "Wang et al. 2022; prompts per sample as in the paper",
                "prompts against their formula; the transformer does not change",
                f"{_FREE}.l2p:L2P",
            ),
            Entry(
                "lwf-sdc",
                "LwF; class means follow the drift of images near them",
                "a mean per class; the old network while a task is learned",
                "Yu et al. 2020, on LwF as in the papers of LDC, ADC and AdaGauss",
                "the drift against its formula; a network that does not move",
                f"{_MOVING}.lwf_sdc:LwFSDC",
            ),
            Entry(
                "ldc",
                "LwF; class means follow a linear map of the features",
                "a mean per class; the old network while a task is learned",
                "Gomez-Villa et al. 2024; the map in closed form",
                "means of a linear drift exactly; a network that does not move",
                f"{_MOVING}.ldc:LDC",
            ),
            Entry(
                "adc",
                "LwF; class means follow images that are changed towards them",
                "a mean per class; the old network while a task is learned",
                "Goswami et al. 2024",
                "the steps against their formula; without steps the drift of the nearest images",
                f"{_MOVING}.adc:ADC",
            ),
            Entry(
                "dpcr",
                "LwF; Gram matrices follow linear maps per class, a ridge classifier predicts",
                "mean and Gram matrix per class; the old network while a task is learned",
                "He et al. 2025, with a threshold for the directions of a class",
                "the classifier equals the ridge regression on all samples, in any order of tasks",
                f"{_MOVING}.dpcr:DPCR",
            ),
            Entry(
                "efc",
                "distillation in the metric of the classifier, replayed samples, moving means",
                "mean and covariance per class, a metric; the old network while a task is learned",
                "Magistri et al. 2024; EFC++ as an option",
                "the metric against derivatives of the outputs; the loss of the identity",
                f"{_MOVING}.efc:EFC",
            ),
            Entry(
                "adagauss",
                "projected distillation, features that do not collapse, an adapter for statistics",
                "mean and covariance per class; the old network while a task is learned",
                "Rypesc et al. 2024",
                "statistics through the identity; the loss at a covariance of at least 1",
                f"{_MOVING}.adagauss:AdaGauss",
            ),
            Entry(
                "fecam-moving",
                "FeCAM whose counts, means and covariances follow a network trained as LwF",
                "statistics of FeCAM, the first network; the old network while a task is learned",
                "of this package; a linear map by leave-one-class-out and local drift",
                "statistics of a linear drift exactly; a network that does not move",
                f"{_MOVING}.fecam_moving:FeCAMMoving",
            ),
            Entry(
                "finetune",
                "few-shot: cross-entropy of all outputs on the few images of each session",
                "nothing",
                "Tao et al. 2020 (Ft-CNN beside TOPIC)",
                "equal to training the grown classifier with small rows; old classes are forgotten",
                f"{_FEW}.finetune:FewShotFineTuning",
            ),
            Entry(
                "d-cosine",
                "few-shot: cosine cross-entropy in the first task, then class means",
                "a mean per class",
                "Zhang et al. 2021 (the base of CEC)",
                "a frozen network; nearest means by cosine",
                f"{_FEW}.d_cosine:DCosine",
            ),
            Entry(
                "topic",
                "few-shot: sessions train the network, anchors hold it in place (approximation)",
                "400 images of the first task and one per later class",
                "Tao et al. 2020; approximation: anchors by k-means instead of a neural gas",
                "the losses against literal ones; without them and with all rows it is finetune",
                f"{_FEW}.topic:TOPIC",
            ),
            Entry(
                "cec",
                "few-shot: d-cosine, then attention over prototypes, trained on pseudo-new classes",
                "a mean per class and the block of attention",
                "Zhang et al. 2021 (continually evolved classifiers)",
                "prototypes in any order; an idle block is nearly d-cosine; turned images",
                f"{_FEW}.cec:CEC",
            ),
            Entry(
                "limit",
                "few-shot: as cec, trained on fake new classes among all of the first task",
                "a mean per class and the block of attention",
                "Zhou et al. 2022 (TPAMI); one fake task per step, as the others are equal",
                "prototypes in any order; an idle block is nearly d-cosine",
                f"{_FEW}.limit:LIMIT",
            ),
            Entry(
                "metafscil",
                "few-shot: the network learns to be adapted to sessions (approximation)",
                "nothing",
                "Chi et al. 2022; approximation: first order, without the gating network",
                "adapted weights and gradients against a literal copy",
                f"{_FEW}.metafscil:MetaFSCIL",
            ),
            Entry(
                "data-free-replay",
                "few-shot: sessions train on their images and on generated ones of old classes",
                "the generator; the old network while a task is learned",
                "Liu et al. 2022 (entropy-regularized)",
                "without generated images it is training of the last stage; generated images",
                f"{_FEW}.data_free_replay:DataFreeReplay",
            ),
            Entry(
                "alice",
                "few-shot: a margin, mixtures of classes and two views in the first task",
                "a mean of five images per class",
                "Peng et al. 2022; the five images nearest to the mean",
                "the margin and the mixtures against literal ones; a frozen network",
                f"{_FEW}.alice:ALICE",
            ),
            Entry(
                "closer",
                "few-shot: views of an image and different classes closer in the first task",
                "a mean per class",
                "Oh et al. 2024",
                "the losses against literal ones; weights 0 are d-cosine",
                f"{_FEW}.closer:Closer",
            ),
            Entry(
                "fact",
                "few-shot: virtual prototypes and mixed maps in the first task",
                "a mean per class and the virtual prototypes",
                "Zhou et al. 2022 (forward compatible training)",
                "the losses and scores against literal ones; eta 0 is the nearest mean by cosine",
                f"{_FEW}.fact:FACT",
            ),
            Entry(
                "savc",
                "few-shot: transforms of images as classes, and contrastive learning with a queue",
                "a mean per class and transform",
                "Song et al. 2023; small crops anywhere",
                "one transform without contrast is d-cosine, to the bit; losses and predictions",
                f"{_FEW}.savc:SAVC",
            ),
            Entry(
                "nc-fscil",
                "few-shot: features towards the vertices of a simplex; later tasks train a neck",
                "a mean feature per class",
                "Yang et al. 2023, without mixed images",
                "the simplex and the loss by their properties; the network below the neck is fixed",
                f"{_FEW}.nc_fscil:NCFSCIL",
            ),
            Entry(
                "replay",
                "fine-tuning on new images and exemplars",
                _IMAGES,
                "PyCIL (Replay); in equal halves as experience replay in mammoth",
                "without exemplars it is fine-tuning; halves are counted",
                f"{_EXEMPLARS}.replay:Replay",
            ),
            Entry(
                "icarl",
                "binary cross-entropy towards the old outputs, nearest mean of exemplars",
                f"{_IMAGES}, a mean per class; the old network while a task is learned",
                "Rebuffi et al. 2017; with a softmax as in PyCIL as an option",
                "targets of exemplars; with all images it is a nearest mean classifier",
                f"{_EXEMPLARS}.icarl:ICaRL",
            ),
            Entry(
                "wa",
                "distillation, then weights of new classes scaled to the norm of old ones",
                f"{_IMAGES}; the old network while a task is learned",
                "Zhao et al. 2020; without clamping as in PyCIL",
                "norms after the alignment; without distillation it is replay",
                f"{_EXEMPLARS}.wa:WA",
            ),
            Entry(
                "bic",
                "distillation, then outputs of new classes corrected by a scale and an offset",
                f"{_IMAGES}, two numbers per class; the old network while a task is learned",
                "Wu et al. 2019; all groups corrected as in PyCIL as an option",
                "the fit against gradient descent; the network does not change in it",
                f"{_EXEMPLARS}.bic:BiC",
            ),
            Entry(
                "der",
                "a network per task, their features side by side, balanced fine-tuning",
                f"{_IMAGES}, a network per task",
                "Yan et al. 2021 without pruning; aligned weights as in PyCIL as an option",
                "old networks and old outputs at the start of a task; numbers of weights",
                f"{_EXEMPLARS}.der:DER",
            ),
            Entry(
                "memo",
                "a last stage per task on shared ones, then weight alignment",
                f"{_IMAGES}, the last stage of the network per task",
                "Zhou et al. 2023; shared stages frozen after the first task",
                "shared stages and old branches do not change; numbers of weights",
                f"{_EXEMPLARS}.memo:MEMO",
            ),
            Entry(
                "podnet",
                "pooled distillation of maps, proxies per class, balanced fine-tuning",
                f"{_IMAGES}; the old network while a task is learned",
                "Douillard et al. 2020; the margin as in public code as an option",
                "the losses at equal networks and by their formulas; fixed old proxies",
                f"{_EXEMPLARS}.podnet:PODNet",
            ),
            Entry(
                "foster",
                "a second network beside the frozen one, then both compressed into one",
                f"{_IMAGES}; three networks while a task is learned",
                "Wang et al. 2022; the compressed network predicts",
                "class weights by their formula; the frozen network, and one network after tasks",
                f"{_EXEMPLARS}.foster:FOSTER",
            ),
            Entry(
                "coil",
                "distillation, and classifiers transported between old and new classes",
                f"{_IMAGES}; the old network while a task is learned",
                "Zhou et al. 2021; means of old classes of exemplars only",
                "marginals of the plan; transport between equal classes copies rows",
                f"{_EXEMPLARS}.coil:Coil",
            ),
        )
    },
    note="A class of your own is written package.module:Class.",
    error=TrainingError,
)


def available() -> list[Entry]:
    """Return all learners of the registry.

    Returns
    -------
    list of Entry
        In the order of the documentation.

    Examples
    --------
    >>> [entry.name for entry in available()][:3]
    ['ft', 'ft-frozen', 'joint']
    """
    return list(_LEARNERS.values())


def make(name: str, **options: Any) -> Learner:
    """Create a learner.

    Parameters
    ----------
    name : str
        A name from `available`, or ``package.module:Class`` for a subclass of `Learner`.
    **options : object
        Options of the method.

    Returns
    -------
    Learner
        A learner without a recipe: call `Learner.start`.

    Raises
    ------
    TrainingError
        If the name, an option or a value is invalid.
    MissingPackageError
        If torch is not installed.

    Examples
    --------
    >>> make("ft", batch_norm="frozen").options()["batch_norm"]
    'frozen'
    """
    kind = _class_of(name)
    check_keys(
        f"the learner {name!r}", options, _defaults(kind), kind="option", error=TrainingError
    )
    return kind(**options)


def check_name(name: str) -> None:
    """Raise `TrainingError` for a name that is not in the registry; needs no torch."""
    if ":" not in name:
        _ = _LEARNERS[name]


def options(name: str) -> Mapping[str, Any]:
    """Return the options of a learner with their defaults.

    Parameters
    ----------
    name : str
        As for `make`.

    Returns
    -------
    mapping
        Defaults by name.

    Examples
    --------
    >>> options("joint")["weights"]
    'scratch'
    """
    return _defaults(_class_of(name))


def _class_of(name: str) -> type[Learner]:
    location = name if ":" in str(name) else _LEARNERS[name].location
    try:
        kind: type[Learner] = import_class("learner", location, TrainingError)
    except TrainingError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing in ("torch", "safetensors", "PIL"):
            raise MissingPackageError("training a network", missing, "images") from None
        raise
    from fecam.learners.learner import Learner

    if not (isinstance(kind, type) and issubclass(kind, Learner)):
        raise TrainingError(f"the learner {name!r} must be a subclass of fecam.learners.Learner.")
    return kind


def _defaults(kind: type[Learner]) -> dict[str, Any]:
    return {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(kind)
        if item.init
    }
