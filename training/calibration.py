"""Calibration of probabilities by a temperature (Guo et al., 2017)."""

import torch
from torch import Tensor
from torch.nn import functional


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Returns the divisor of the logits that gives the validation classes the highest likelihood."""
    log_temperature = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([log_temperature], lr=0.1, max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits / log_temperature.exp(), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(log_temperature.exp().item())
