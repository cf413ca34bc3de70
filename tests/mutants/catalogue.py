"""All mutants by their names."""

from __future__ import annotations

from typing import Final

from tests.mutants.cluster_mutants import CLUSTER_MUTANTS
from tests.mutants.connect_mutants import CONNECT_MUTANTS
from tests.mutants.controller_mutants import CONTROLLER_MUTANTS
from tests.mutants.coordinator_mutants import COORDINATOR_MUTANTS
from tests.mutants.metadata_log_mutants import METADATA_LOG_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.server_mutants import SERVER_MUTANTS
from tests.mutants.storage_mutants import STORAGE_MUTANTS

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant
    for mutant in (
        *CLUSTER_MUTANTS,
        *CONNECT_MUTANTS,
        *CONTROLLER_MUTANTS,
        *COORDINATOR_MUTANTS,
        *METADATA_LOG_MUTANTS,
        *STORAGE_MUTANTS,
        *SERVER_MUTANTS,
    )
}
