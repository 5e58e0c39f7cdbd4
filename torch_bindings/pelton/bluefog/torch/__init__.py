"""BlueFog's API: `import pelton.bluefog.torch as bf`; see docs/coming_from/bluefog.md."""

from pelton.bluefog.common.topology_util import ExponentialGraph as ExponentialGraph
from pelton.bluefog.common.topology_util import ExponentialTwoGraph as ExponentialTwoGraph
from pelton.bluefog.common.topology_util import FullyConnectedGraph as FullyConnectedGraph
from pelton.bluefog.common.topology_util import GetDynamicOnePeerSendRecvRanks as GetDynamicOnePeerSendRecvRanks
from pelton.bluefog.common.topology_util import GetDynamicSendRecvRanks as GetDynamicSendRecvRanks
from pelton.bluefog.common.topology_util import GetExp2DynamicSendRecvMachineRanks as GetExp2DynamicSendRecvMachineRanks
from pelton.bluefog.common.topology_util import (
    GetInnerOuterExpo2DynamicSendRecvRanks as GetInnerOuterExpo2DynamicSendRecvRanks,
)
from pelton.bluefog.common.topology_util import (
    GetInnerOuterRingDynamicSendRecvRanks as GetInnerOuterRingDynamicSendRecvRanks,
)
from pelton.bluefog.common.topology_util import GetRecvWeights as GetRecvWeights
from pelton.bluefog.common.topology_util import GetSendWeights as GetSendWeights
from pelton.bluefog.common.topology_util import GetWeights as GetWeights
from pelton.bluefog.common.topology_util import IsRegularGraph as IsRegularGraph
from pelton.bluefog.common.topology_util import IsTopologyEquivalent as IsTopologyEquivalent
from pelton.bluefog.common.topology_util import MeshGrid2DGraph as MeshGrid2DGraph
from pelton.bluefog.common.topology_util import PowerTwoRingGraph as PowerTwoRingGraph
from pelton.bluefog.common.topology_util import RingGraph as RingGraph
from pelton.bluefog.common.topology_util import StarGraph as StarGraph
from pelton.bluefog.common.topology_util import SymmetricExponentialGraph as SymmetricExponentialGraph
from pelton.bluefog.torch._basics import get_skip_negotiate_stage as get_skip_negotiate_stage
from pelton.bluefog.torch._basics import in_neighbor_machine_ranks as in_neighbor_machine_ranks
from pelton.bluefog.torch._basics import in_neighbor_ranks as in_neighbor_ranks
from pelton.bluefog.torch._basics import init as init
from pelton.bluefog.torch._basics import is_homogeneous as is_homogeneous
from pelton.bluefog.torch._basics import load_machine_topology as load_machine_topology
from pelton.bluefog.torch._basics import load_topology as load_topology
from pelton.bluefog.torch._basics import local_rank as local_rank
from pelton.bluefog.torch._basics import local_size as local_size
from pelton.bluefog.torch._basics import machine_rank as machine_rank
from pelton.bluefog.torch._basics import machine_size as machine_size
from pelton.bluefog.torch._basics import mpi_threads_supported as mpi_threads_supported
from pelton.bluefog.torch._basics import nccl_built as nccl_built
from pelton.bluefog.torch._basics import out_neighbor_machine_ranks as out_neighbor_machine_ranks
from pelton.bluefog.torch._basics import out_neighbor_ranks as out_neighbor_ranks
from pelton.bluefog.torch._basics import rank as rank
from pelton.bluefog.torch._basics import resume as resume
from pelton.bluefog.torch._basics import set_machine_topology as set_machine_topology
from pelton.bluefog.torch._basics import set_skip_negotiate_stage as set_skip_negotiate_stage
from pelton.bluefog.torch._basics import set_topology as set_topology
from pelton.bluefog.torch._basics import shutdown as shutdown
from pelton.bluefog.torch._basics import size as size
from pelton.bluefog.torch._basics import suspend as suspend
from pelton.bluefog.torch._basics import timeline_context as timeline_context
from pelton.bluefog.torch._basics import timeline_end_activity as timeline_end_activity
from pelton.bluefog.torch._basics import timeline_start_activity as timeline_start_activity
from pelton.bluefog.torch._basics import unified_mpi_window_model_supported as unified_mpi_window_model_supported
from pelton.bluefog.torch._windows import get_current_created_window_names as get_current_created_window_names
from pelton.bluefog.torch._windows import get_win_version as get_win_version
from pelton.bluefog.torch._windows import neighbor_win_accumulate as neighbor_win_accumulate
from pelton.bluefog.torch._windows import neighbor_win_accumulate_nonblocking as neighbor_win_accumulate_nonblocking
from pelton.bluefog.torch._windows import neighbor_win_get as neighbor_win_get
from pelton.bluefog.torch._windows import neighbor_win_get_nonblocking as neighbor_win_get_nonblocking
from pelton.bluefog.torch._windows import neighbor_win_put as neighbor_win_put
from pelton.bluefog.torch._windows import neighbor_win_put_nonblocking as neighbor_win_put_nonblocking
from pelton.bluefog.torch._windows import turn_off_win_ops_with_associated_p as turn_off_win_ops_with_associated_p
from pelton.bluefog.torch._windows import turn_on_win_ops_with_associated_p as turn_on_win_ops_with_associated_p
from pelton.bluefog.torch._windows import win_accumulate as win_accumulate
from pelton.bluefog.torch._windows import win_accumulate_async as win_accumulate_async
from pelton.bluefog.torch._windows import win_accumulate_nonblocking as win_accumulate_nonblocking
from pelton.bluefog.torch._windows import win_associated_p as win_associated_p
from pelton.bluefog.torch._windows import win_create as win_create
from pelton.bluefog.torch._windows import win_free as win_free
from pelton.bluefog.torch._windows import win_get as win_get
from pelton.bluefog.torch._windows import win_get_async as win_get_async
from pelton.bluefog.torch._windows import win_get_nonblocking as win_get_nonblocking
from pelton.bluefog.torch._windows import win_lock as win_lock
from pelton.bluefog.torch._windows import win_mutex as win_mutex
from pelton.bluefog.torch._windows import win_poll as win_poll
from pelton.bluefog.torch._windows import win_put as win_put
from pelton.bluefog.torch._windows import win_put_async as win_put_async
from pelton.bluefog.torch._windows import win_put_nonblocking as win_put_nonblocking
from pelton.bluefog.torch._windows import win_sync as win_sync
from pelton.bluefog.torch._windows import win_sync_then_collect as win_sync_then_collect
from pelton.bluefog.torch._windows import win_update as win_update
from pelton.bluefog.torch._windows import win_update_then_collect as win_update_then_collect
from pelton.bluefog.torch._windows import win_wait as win_wait
from pelton.bluefog.torch.mpi_ops import allgather as allgather
from pelton.bluefog.torch.mpi_ops import allgather_async as allgather_async
from pelton.bluefog.torch.mpi_ops import allgather_nonblocking as allgather_nonblocking
from pelton.bluefog.torch.mpi_ops import allreduce as allreduce
from pelton.bluefog.torch.mpi_ops import allreduce_ as allreduce_
from pelton.bluefog.torch.mpi_ops import allreduce_async as allreduce_async
from pelton.bluefog.torch.mpi_ops import allreduce_nonblocking as allreduce_nonblocking
from pelton.bluefog.torch.mpi_ops import allreduce_nonblocking_ as allreduce_nonblocking_
from pelton.bluefog.torch.mpi_ops import barrier as barrier
from pelton.bluefog.torch.mpi_ops import broadcast as broadcast
from pelton.bluefog.torch.mpi_ops import broadcast_ as broadcast_
from pelton.bluefog.torch.mpi_ops import broadcast_async as broadcast_async
from pelton.bluefog.torch.mpi_ops import broadcast_async_ as broadcast_async_
from pelton.bluefog.torch.mpi_ops import broadcast_nonblocking as broadcast_nonblocking
from pelton.bluefog.torch.mpi_ops import broadcast_nonblocking_ as broadcast_nonblocking_
from pelton.bluefog.torch.mpi_ops import hierarchical_neighbor_allreduce as hierarchical_neighbor_allreduce
from pelton.bluefog.torch.mpi_ops import (
    hierarchical_neighbor_allreduce_nonblocking as hierarchical_neighbor_allreduce_nonblocking,
)
from pelton.bluefog.torch.mpi_ops import neighbor_allgather as neighbor_allgather
from pelton.bluefog.torch.mpi_ops import neighbor_allgather_async as neighbor_allgather_async
from pelton.bluefog.torch.mpi_ops import neighbor_allgather_nonblocking as neighbor_allgather_nonblocking
from pelton.bluefog.torch.mpi_ops import neighbor_allreduce as neighbor_allreduce
from pelton.bluefog.torch.mpi_ops import neighbor_allreduce_async as neighbor_allreduce_async
from pelton.bluefog.torch.mpi_ops import neighbor_allreduce_nonblocking as neighbor_allreduce_nonblocking
from pelton.bluefog.torch.mpi_ops import poll as poll
from pelton.bluefog.torch.mpi_ops import synchronize as synchronize
from pelton.bluefog.torch.mpi_ops import wait as wait
from pelton.bluefog.torch.optimizers import CommunicationType as CommunicationType
from pelton.bluefog.torch.optimizers import DistributedAdaptThenCombineOptimizer as DistributedAdaptThenCombineOptimizer
from pelton.bluefog.torch.optimizers import DistributedAdaptWithCombineOptimizer as DistributedAdaptWithCombineOptimizer
from pelton.bluefog.torch.optimizers import DistributedAllreduceOptimizer as DistributedAllreduceOptimizer
from pelton.bluefog.torch.optimizers import DistributedBluefogOptimizer as DistributedBluefogOptimizer
from pelton.bluefog.torch.optimizers import (
    DistributedGradientAllreduceOptimizer as DistributedGradientAllreduceOptimizer,
)
from pelton.bluefog.torch.optimizers import (
    DistributedHierarchicalNeighborAllreduceOptimizer as DistributedHierarchicalNeighborAllreduceOptimizer,
)
from pelton.bluefog.torch.optimizers import (
    DistributedNeighborAllreduceOptimizer as DistributedNeighborAllreduceOptimizer,
)
from pelton.bluefog.torch.optimizers import DistributedPullGetOptimizer as DistributedPullGetOptimizer
from pelton.bluefog.torch.optimizers import DistributedPushSumOptimizer as DistributedPushSumOptimizer
from pelton.bluefog.torch.optimizers import DistributedWinPutOptimizer as DistributedWinPutOptimizer
from pelton.bluefog.torch.topology_util import InferDestinationFromSourceRanks as InferDestinationFromSourceRanks
from pelton.bluefog.torch.topology_util import InferSourceFromDestinationRanks as InferSourceFromDestinationRanks
from pelton.bluefog.torch.utility import allreduce_parameters as allreduce_parameters
from pelton.bluefog.torch.utility import broadcast_optimizer_state as broadcast_optimizer_state
from pelton.bluefog.torch.utility import broadcast_parameters as broadcast_parameters
