"""Seconds of a step at sizes and batches that were not tried: Pollux's model, fitted to those that were. Pure.

Qiao et al. 2021 (OSDI), arXiv 2008.12260, section 3.2, with seven parameters:

    T_grad(m) = alpha_c + beta_c * m                                    one pass of m samples
    T_sync    = 0, alpha_r + beta_r * (K - 2), alpha_n + beta_n * (K - 2)   one worker, one node, several
    T_iter    = s * T_grad + (T_grad^gamma + T_sync^gamma)^(1 / gamma)      s + 1 passes, the last beside the exchange

They are fitted by Levenberg-Marquardt to logarithms of times, with normal priors on the logarithms of the parameters
instead of the paper's bounds and penalties: what nothing was measured of stays as uncertain as it is, and says so.
How uncertain is found by fitting again and again to data and priors that are shifted as far as they may be wrong
(Bardsley et al. 2014, SIAM J. Sci. Comput. 36, A1895): what is added up, such as fixed and growing cost, is not known
apart where its sum is, and normal draws around the likeliest parameters would forget that the sum is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MAX_GAMMA = 10.0
_PRIOR_SD = np.array([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5])
_LEAST_NOISE = 0.03
_MAX_ROUNDS = 60
_STEP = 1e-5
_CONVERGED = 1e-6
_NUM_DRAWS = 64

Vector: TypeAlias = NDArray[np.float64]
Residuals: TypeAlias = Callable[[Vector], Vector]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a step is computed: workers, the nodes that they are on, samples of the whole batch, passes a worker."""

    num_workers: int
    num_nodes: int
    global_batch: int
    num_passes: int

    @property
    def samples_a_pass(self) -> float:
        return self.global_batch / self.num_workers / self.num_passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a layout took: seconds of one pass (fetching and computing) and of a step, medians of ``num_steps``."""

    layout: Layout
    pass_s: float
    step_s: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, or a ratio of them, and the standard deviation of the logarithm."""

    value: float
    error: float


class Model:
    """A fit; make it by ``fit``. ``draws`` are other parameters, each as likely as the next, one set a row."""

    def __init__(self, parameters: Vector, draws: Vector, noise: float) -> None:
        self._sets, self._noise = np.vstack([parameters, draws]), noise

    def step_s(self, layout: Layout) -> Estimate:
        """A step of this layout, as it is most likely; the error is that of parameters drawn as likely as they are."""
        log_s = _Table([layout]).log_times(self._sets)[:, 1]
        return self._estimate(log_s)

    def times_as_long(self, layout: Layout, other: Layout) -> Estimate:
        """How many times as long as a step of ``other`` one of ``layout`` takes.

        Surer than either: parameters that nobody has told apart, such as what a pass and what an exchange costs
        without a sample, make both longer at once.
        """
        log_s = _Table([layout, other]).log_times(self._sets)[:, 2:]
        return self._estimate(log_s[:, 0] - log_s[:, 1])

    def _estimate(self, logarithms: Vector) -> Estimate:
        """Of the likeliest parameters' value, first, and those of the draws."""
        spread = float(np.mean(np.square(logarithms[1:] - logarithms[0])))
        return Estimate(float(np.exp(logarithms[0])), (spread + self._noise**2) ** 0.5)


def fit(observations: Sequence[Observation]) -> Model:
    """The parameters that explain the observations best; at least one is needed."""
    mean = _prior_mean(observations)
    table = _Table([o.layout for o in observations])
    seen = np.log([o.pass_s for o in observations] + [o.step_s for o in observations])
    weights = np.tile([min(1.0, (o.num_steps / 20) ** 0.5) for o in observations], 2)

    def residuals_to(data: Vector, priors: Vector, noise: float) -> Residuals:
        def residuals(sets: Vector) -> Vector:
            misfit = (table.log_times(sets.reshape(-1, len(mean))).reshape(*sets.shape[:-1], -1) - data) * weights
            return np.concatenate([misfit / noise, (sets - priors) / _PRIOR_SD], axis=-1)

        return residuals

    parameters = _least_squares(residuals_to(seen, mean, _LEAST_NOISE), mean[None])
    left = (table.log_times(parameters)[0] - seen) * weights
    noise = max(_LEAST_NOISE, float(np.sqrt(np.mean(left**2))))
    normal = np.random.Generator(np.random.PCG64(0)).standard_normal((_NUM_DRAWS, len(seen) + len(mean)))
    data = seen + normal[:, : len(seen)] * noise / weights
    priors = mean + normal[:, len(seen) :] * _PRIOR_SD
    # From where the priors lie, since a path from the likeliest ones may end where it began.
    draws = _least_squares(residuals_to(data, priors, noise), priors)
    return Model(parameters, draws, noise)


def _prior_mean(observations: Sequence[Observation]) -> Vector:
    """Half of a pass is fixed cost, half grows with its samples; an exchange is a tenth of a step."""
    pass_s = float(np.exp(np.mean(np.log([o.pass_s for o in observations]))))
    samples = float(np.exp(np.mean(np.log([o.layout.samples_a_pass for o in observations]))))
    sync_s = 0.1 * float(np.exp(np.mean(np.log([o.step_s for o in observations]))))
    costs = [pass_s / 2, pass_s / 2 / samples, sync_s, 0.1 * sync_s, 1.5 * sync_s, 0.15 * sync_s]
    return np.array([*np.log(costs), -1.0])


class _Table:
    """Layouts as columns, so that one formula gives the times of all at once."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._samples = np.array([of.samples_a_pass for of in layouts])
        self._num_passes = np.array([of.num_passes for of in layouts])
        self._num_more = np.array([max(0, of.num_workers - 2) for of in layouts])
        self._is_alone = np.array([of.num_workers == 1 for of in layouts])
        self._is_spread = np.array([of.num_nodes > 1 for of in layouts])

    def log_times(self, sets: Vector) -> Vector:
        """Logarithms of the seconds of a pass, for all layouts, then of a step, for all; a row a set of parameters."""
        fixed, per_sample, local, local_more, remote, remote_more = np.exp(sets[:, :6]).T[:, :, None]
        gamma = 1.0 + (MAX_GAMMA - 1.0) / (1.0 + np.exp(-sets[:, 6:]))
        pass_s = fixed + per_sample * self._samples
        sync_s = np.where(self._is_spread, remote + remote_more * self._num_more, local + local_more * self._num_more)
        high, low = np.maximum(pass_s, sync_s), np.minimum(pass_s, sync_s)
        # (a^gamma + b^gamma)^(1/gamma), written so that nothing overflows
        last_s = np.where(self._is_alone, pass_s, high * (1.0 + (low / high) ** gamma) ** (1.0 / gamma))
        times: Vector = np.log(np.concatenate([pass_s, (self._num_passes - 1) * pass_s + last_s], axis=1))
        return times


def _least_squares(residuals: Residuals, start: Vector) -> Vector:
    """Levenberg-Marquardt (Marquardt 1963, SIAM 11, 431) of problems of one form at once, each a row of ``start``.

    ``residuals`` takes parameters (..., problem, parameter) and gives values (..., problem, value).
    """
    parameters, damping = start, np.full(len(start), 1e-2)
    left, is_done = residuals(parameters), np.zeros(len(start), dtype=bool)
    for _ in range(_MAX_ROUNDS):
        jacobian = _slopes(residuals, parameters)
        normal = np.einsum("kvp,kvq->kpq", jacobian, jacobian)
        pull = np.einsum("kvp,kv->kp", jacobian, left)
        damped = normal + damping[:, None, None] * normal * np.eye(normal.shape[-1])
        tried = parameters - np.clip(np.linalg.solve(damped, pull[..., None])[..., 0], -2.0, 2.0)
        found = residuals(tried)
        before, after = np.sum(left**2, axis=-1), np.sum(found**2, axis=-1)
        is_better = after < before
        parameters, left = np.where(is_better[:, None], tried, parameters), np.where(is_better[:, None], found, left)
        damping = np.where(is_better, damping / 3, damping * 4)
        is_done |= (damping > 1e8) | (is_better & (before - after < _CONVERGED * before))
        if is_done.all():
            break
    return parameters


def _slopes(residuals: Residuals, at: Vector) -> Vector:
    """The Jacobians (problem, value, parameter) by central differences: all fourteen neighbours in one call."""
    shifts = _STEP * np.eye(at.shape[-1])[:, None, :]
    values = residuals(np.concatenate([at + shifts, at - shifts]))
    num = at.shape[-1]
    return np.moveaxis((values[:num] - values[num:]) / (2 * _STEP), 0, -1)
