"""What the tests of manifests share."""

from tests.pods.manifest_folder import folder as folder
from tests.pods.manifest_folder import hierarchy as hierarchy
from tests.pods.manifest_folder import pods as pods
