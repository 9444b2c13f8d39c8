"""Exact secure sums: the server learns Σᵢ vᵢ, bit for bit the plain int64 sum, and no vᵢ. Two pure state machines that exchange bytes.

Keys      Every site signs a card (one X25519 and one Ed25519 key) with the identity key that stands in the agreed roster.
SUM/BASE  Everyone's values, one trip: vᵢ + Σⱼ ±m(i, j), with masks from the cards' shared secrets and a digest of the question.
          They cancel only if all sites answer the same question; nothing can open less than that, so nothing is shared or revealed.
CHANGES   Of whoever answers, two trips (K. Bonawitz et al., 2017): masks from a bundle for this one round, which the site has shared
          t of n, plus a mask of its own. Who has answered is then fixed, and they give their shares of the survivors' own masks and
          of the dropped sites' keys. A site gives one or the other, once; a vector that comes late stays hidden.
          What is summed are changes against the last accepted values, so that the server's total is that of all sites (changes.py).

Cost, bytes per site and round, n sites, c asked, s answering, d numbers in ℓ leaves:
    SUM, BASE   down 111 + 6ℓ + 18c          up 164 + 8d
    CHANGES     down 111 + 6ℓ + 150c, then 81 + 2s + 82c          up 164 + 8d + (150 + 82n) per new bundle, then 195 + 34c
"""

from .agreement import Agreement as Agreement
from .agreement import fewest_summed as fewest_summed
from .agreement import usual_threshold as usual_threshold
from .errors import Reason as Reason
from .errors import SecureError as SecureError
from .messages import Kind as Kind
from .messages import Mode as Mode
from .messages import Question as Question
from .openround import Phase as Phase
from .server import Received as Received
from .server import SecureServer as SecureServer
from .server import Sum as Sum
from .site import SecureSite as SecureSite
