"""Every tuning constant of the search, with its unit and how it was found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchTuning:
    """Constants that change speed, and in an approximate search the share of equal answers.

    Times were compared on two cores with CIFAR-100 and glyph features at 512 dimensions
    (``benchmarks/prediction.py``); within a factor of two of each value they differ by a few
    percent.
    """

    block_bytes: int = 32 * 2**20
    """Size of the largest temporary array of one block of queries, in bytes."""
    block_rows: int = 4096
    """Queries per block at most; each block is searched by one thread."""
    min_parallel_rows: int = 256
    """Queries per block at least: smaller blocks take longer to distribute than to search."""
    min_basis_classes: int = 16
    """Classes from which on rotating every query into a shared basis pays off."""
    min_basis_features: int = 64
    """Features from which on a shared basis pays off."""
    first_block: int = 128
    """Columns of the first Cholesky block, or a quarter of all columns if that is less."""
    block_growth: float = 1.5
    """Ratio between the ends of successive Cholesky blocks."""
    tail_floor_share: float = 0.9
    """Share of the largest possible tail floor that is used: at 1 the remainder is singular."""
    min_low_rank_floor: float = 0.002
    """Floor of a low-rank matrix, relative to its mean variance, below which Woodbury's
    difference cancels too many digits."""
    max_single_gain: float = 1000.0
    """Largest trace of a low-rank part, relative to its floor, and largest product of a
    variance and the mean precision, for matrix products in single precision."""
    min_prior_pairs: int = 250
    """Pairs of a query and a class from which on bounds pay off where all classes are of low rank,
    with a prior."""
    min_low_rank_pairs: int = 10**6
    """The same without a prior, where distances are cheaper."""
    max_direct_rank: int = 32
    """Rank up to which evaluating a class costs less than bounding it by monomials."""
    pair_cost: int = 16
    """Cost of a pair of a query and a class that is evaluated class by class, beyond its rank: in
    rows of a product that evaluates all pairs at once."""
    class_cost: int = 128
    """The same per class."""
    low_rank_prefix: int = 64
    """Coordinates of the prefix bound of low-rank classes without a prior."""
    bound_rtol: float = 1e-4
    """Relative margin of every comparison of bounds and distances: larger than rounding. Distances
    that differ by less are evaluated again, class by class."""
    radius_tolerance: float = 0.01
    """Width of a bound, relative to the radius, up to which an estimate stands for the distance of
    a class that only counts for a probability: a twentieth of a temperature."""
    epsilon: float = 0.65
    """Fraction by which approximate search moves each lower bound towards the estimate. At 0.65 at
    least 99.9 % of the labels on real features are those of exact search; at 0.75 it is 99.7 %."""
    cg_min_floor: float = 0.01
    """Floor of a matrix, relative to its mean variance, below which CG converges too slowly."""
    cg_max_steps: int = 64
    """Products per class after which the interval is used as it is."""
    cg_min_flops: float = 2e8
    """Multiplications that missing precisions must take before CG is worth its set-up."""
    cg_cost: float = 1 / 8
    """Cost of deriving one precision, in CG evaluations of one query, per unit of rank."""


TUNING = SearchTuning()
