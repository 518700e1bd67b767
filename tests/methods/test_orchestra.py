from tests.methods.contract import ENCODER, PROJECTOR, STATISTICS, MethodContract

SMALL = ("objective.clusters=6", "objective.bank=16", "method.local_clusters=3", "method.server_steps=5")
HEAD = 8 * 4 + 4
NETWORKS = 4 * (2 * (ENCODER + PROJECTOR + STATISTICS) + HEAD)


class TestOrchestra(MethodContract):
    method = "orchestra"
    overrides = SMALL
    falls = False

    def bill(self, run):
        return {
            ("initialise", "down", "weights"): NETWORKS,
            ("initialise", "up", "centroids"): 4 * 3 * 8,
            ("fit", "down", "weights"): NETWORKS,
            ("fit", "down", "centroids"): 4 * 6 * 8,
            ("fit", "up", "weights"): NETWORKS,
            ("fit", "up", "centroids"): 4 * 3 * 8,
        }
