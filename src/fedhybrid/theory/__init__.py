"""The paper's analysis as functions: mᵢ, ℓᵢ, admissible step sizes, the proved rate ρ, and Δᵏ with its parts.

constants     mᵢ and ℓᵢ of a fleet
steps         Theorem 1's conditions on a and b, and its ρ
duality       L, g, and Lemmas 1 and 2, for small fleets, by dense linear algebra
contraction   Δ = 13Δλ + Δx, and Theorem 1 checked round by round
rounding      what rounding can add to that check
"""

from .constants import Bounds as Bounds
from .constants import bounds as bounds
from .contraction import Contraction as Contraction
from .contraction import Gaps as Gaps
from .contraction import certify as certify
from .contraction import contracts as contracts
from .contraction import gaps as gaps
from .duality import Dual as Dual
from .duality import dual as dual
from .duality import dual_gradient as dual_gradient
from .duality import dual_hessian as dual_hessian
from .duality import dual_newton_step as dual_newton_step
from .duality import hessian_weighted_average as hessian_weighted_average
from .duality import lagrangian as lagrangian
from .steps import Steps as Steps
from .steps import check_steps as check_steps
from .steps import rate as rate
from .steps import theorem_steps as theorem_steps
from .steps import violations as violations
