# A copy of cudnn-frontend's headers whose graphs hold more operations. As they come they keep a graph's operations in arrays of 50 and write
# past the end of those, while cuDNN itself takes graphs of several hundred. Where the headers don't look as expected, they are used as
# they are: the backend asks them how many operations a graph holds.

set(SCOREMOD_GRAPH_OPERATIONS 256)
set(scoremod_frontend_copy "${PROJECT_BINARY_DIR}/cudnn_frontend/include")
set(scoremod_frontend_array_headers cudnn_frontend_OperationGraph.h cudnn_frontend_Errata.h)

set(scoremod_frontend_patched "")
foreach(name IN LISTS scoremod_frontend_array_headers)
  file(READ "${SCOREMOD_CUDNN_FRONTEND_INCLUDE}/${name}" text)
  string(REPLACE "MAX_OPGRAPH_OPS = 50;" "MAX_OPGRAPH_OPS = ${SCOREMOD_GRAPH_OPERATIONS};" text "${text}")
  foreach(element ManagedOpaqueDescriptor cudnnBackendDescriptor_t)
    string(REPLACE "std::array<${element}, 50>" "std::array<${element}, MAX_OPGRAPH_OPS>" text "${text}")
  endforeach()
  string(APPEND scoremod_frontend_patched "${text}")
  set(scoremod_text_of_${name} "${text}")
endforeach()

if(scoremod_frontend_patched MATCHES "MAX_OPGRAPH_OPS = ${SCOREMOD_GRAPH_OPERATIONS};" AND NOT scoremod_frontend_patched MATCHES ", 50>")
  file(GLOB scoremod_frontend_files "${SCOREMOD_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend*"
       "${SCOREMOD_CUDNN_FRONTEND_INCLUDE}/cudnn_backend_base.h")
  list(FILTER scoremod_frontend_files EXCLUDE REGEX "cudnn_frontend_(OperationGraph|Errata)\\.h$")
  file(COPY ${scoremod_frontend_files} DESTINATION "${scoremod_frontend_copy}")
  foreach(name IN LISTS scoremod_frontend_array_headers)
    # Written only when it changes, so that nothing is compiled again.
    file(CONFIGURE OUTPUT "${scoremod_frontend_copy}/${name}" CONTENT "${scoremod_text_of_${name}}" @ONLY)
  endforeach()
  set(SCOREMOD_FRONTEND_HEADERS "${scoremod_frontend_copy}")
else()
  message(STATUS "cuDNN backend: the arrays of ${SCOREMOD_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_OperationGraph.h stay as they are")
  set(SCOREMOD_FRONTEND_HEADERS "${SCOREMOD_CUDNN_FRONTEND_INCLUDE}")
endif()
