"""Anderson acceleration of FedHybrid, as a textbook prints it: all clients' (x, λ) in one long vector, and a least-squares fit.

    s⁺ = t − Σⱼ γⱼ(tⱼ₊₁ − tⱼ),   γ = argmin ‖r − Σⱼ γⱼ(rⱼ₊₁ − rⱼ)‖²,   t = T(s), r = t − s with λ's part divided by μ

Every column of the fit is scaled to length 1, and a ridge of 1e-10 times the identity stands below it (as rows of √1e-10). A step that was
mixed and has a ‖r‖ of more than twice the least since the memory was empty, or one that is not finite, is undone: the next one begins from
the image before it, with an empty memory. The third in a row of mixed steps that lower no ‖r‖ is kept and empties the memory. While
somebody is away it does nothing, its last x − λ/μ counts, and the memory stays empty.
"""

import itertools
from typing import NamedTuple

import numpy as np

from reference.fedhybrid import fedhybrid


class Trace(NamedTuple):
    """After each round: x and lam (rounds, n, d), the images; x0 (rounds, d), mixed; γ (rounds, h), oldest first; dropped or not."""

    x: np.ndarray
    lam: np.ndarray
    x0: np.ndarray
    gamma: np.ndarray
    dropped: np.ndarray


def anderson(clients, kinds, mu, a, b, x0, x, lam, rounds, memory, away=lambda k: (), image=fedhybrid):
    n = len(clients)
    x0 = np.mean(x, axis=0) - np.mean(lam, axis=0) / mu if x0 is None else np.array(x0, dtype=float)
    s_x, s_lam = np.array(x, dtype=float), np.array(lam, dtype=float)
    held = [(s_x[i], s_lam[i]) for i in range(n)]  # the last image of each
    sent = [s_x[i] - s_lam[i] / mu for i in range(n)]
    history = []  # (x, lam, x0, r), all images that may be mixed
    safe = (s_x, s_lam, x0)
    best, idle, mixed = np.inf, 0, False
    trace = Trace([], [], [], [], [])
    for k in range(rounds):
        absent = set(away(k))
        one = image(clients, kinds, mu, a, b, x0, s_x, s_lam, 1)
        t_x, t_lam = one.x[0].copy(), one.lam[0].copy()
        for i in range(n):
            if i in absent:
                t_x[i], t_lam[i] = held[i]
            else:
                sent[i] = t_x[i] - t_lam[i] / mu
        t_x0 = sum(sent) / n
        present = [i for i in range(n) if i not in absent]
        r = np.concatenate([np.concatenate([t_x[i] - s_x[i], (t_lam[i] - s_lam[i]) / mu]) for i in present])
        size = np.linalg.norm(r)
        dropped = mixed and not absent and not size <= 2 * best
        gamma = np.zeros(memory)
        if dropped:
            s_x, s_lam, x0 = safe
            history, mixed = [], False
        else:
            idle = idle + 1 if mixed and size >= best else 0
            best = min(best, size) if mixed else size
            safe = (t_x, t_lam, t_x0)
            held = [(t_x[i], t_lam[i]) for i in range(n)]
            history = [] if absent or idle >= 3 else [*history, (t_x, t_lam, t_x0, r)][-memory - 1 :]
            s_x, s_lam, x0 = safe
            mixed = len(history) > 1
            if mixed:
                moves = np.array([after[3] - before[3] for before, after in itertools.pairwise(history)]).T
                length = np.linalg.norm(moves, axis=0)
                count = len(length)
                tall = np.vstack([moves / length, np.sqrt(1e-10) * np.eye(count)])
                found = np.linalg.lstsq(tall, np.concatenate([r, np.zeros(count)]), rcond=None)[0] / length
                gamma[memory - count :] = found
                for j in range(count):
                    before, after = history[j], history[j + 1]
                    s_x = s_x - found[j] * (after[0] - before[0])
                    s_lam = s_lam - found[j] * (after[1] - before[1])
                    x0 = x0 - found[j] * (after[2] - before[2])
        for name, value in (("x", t_x), ("lam", t_lam), ("x0", x0), ("gamma", gamma), ("dropped", dropped)):
            getattr(trace, name).append(value)
    return Trace(*(np.array(part) for part in trace))
