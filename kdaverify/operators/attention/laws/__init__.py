"""Laws of attention, each to the bit or within the proven bounds of both calls."""

from kdaverify.operators.attention.laws.decode import DECODE_LAWS as DECODE_LAWS
from kdaverify.operators.attention.laws.dense import DENSE_LAWS as DENSE_LAWS
from kdaverify.operators.attention.laws.merge import MERGE_LAWS as MERGE_LAWS
from kdaverify.operators.attention.laws.sparse import SPARSE_LAWS as SPARSE_LAWS
