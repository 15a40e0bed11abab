"""How the values that the daemon answers with are read."""

from __future__ import annotations

from kurma_core.api.host import CheckLine, IsolatorInfo, NetworkFinding, NetworkInfo
from kurma_core.api.images import HostImage, ImageChecked, ImageGc, ImagePage, ImageRendered, ListedImage
from kurma_core.api.pods import Collected
from kurma_core.api.trust import Key, TrustChange, TrustedKey
from kurma_core.models.image import ImageRecord

image = ImageRecord.from_json
listed_image = ListedImage.from_json
image_facts = ImagePage.from_json
rendered = ImageRendered.from_json
verified = ImageChecked.from_json
gc_report = ImageGc.from_json
host_image = HostImage.from_json
collected = Collected.from_json
trusted_key = TrustedKey.from_json
key = Key.from_json
change = TrustChange.from_json
network = NetworkInfo.from_json
finding = NetworkFinding.from_json
check_line = CheckLine.from_json
isolator = IsolatorInfo.from_json
