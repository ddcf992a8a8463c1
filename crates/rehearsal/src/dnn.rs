//! cuDNN's functions of the graph interface, `cudnn*`, as `cudnn_graph.h` declares them.
