from roofline.batch import Batch as Batch
from roofline.errors import RooflineError as RooflineError
from roofline.ledger import Conventions as Conventions
from roofline.ledger import Parallel as Parallel
from roofline.ledger import Precision as Precision
from roofline.ledger import build_ledger as build_ledger
from roofline.ledger import kv_bytes_per_token as kv_bytes_per_token
from roofline.ledger import kv_bytes_stored as kv_bytes_stored
from roofline.phases import Setup as Setup
from roofline.phases import phase as phase
from roofline.planning.document import plan_document as plan_document
from roofline.planning.load import Load as Load
from roofline.planning.plan import make_plan as make_plan
from roofline.profiles.catalog import load_hardware as load_hardware
from roofline.profiles.catalog import load_model as load_model
from roofline.profiles.hardware import Hardware as Hardware
from roofline.profiles.model import Model as Model
from roofline.serving.asked import Lengths as Lengths
from roofline.serving.asked import Traffic as Traffic
from roofline.serving.deployment import deploy as deploy

__version__: str
