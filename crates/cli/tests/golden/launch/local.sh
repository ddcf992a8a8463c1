fathom supervise --out out/llama3-8b --max-restarts 10 -- fathom train llama3-8b mesh.tp=4 mesh.pp=2
