/* cudnn_parts: what the files of the cuDNN stand-in share. cudnn.cc is the API: descriptors, their
 * attributes, and Execute; cudnn_checks.cc says what a descriptor must hold to be finalised, and
 * which graphs have engines; cudnn_ops.cc computes. */
#ifndef STANDIN_CUDNN_PARTS_H
#define STANDIN_CUDNN_PARTS_H

#include <array>
#include <cudnn.h>
#include <map>
#include <memory>
#include <string.h>
#include <string>
#include <vector>

/* Thrown inside, returned by the API: the status, and the text of cudnnGetLastErrorString. */
struct cudnn_refusal {
    cudnnStatus_t status;
    std::string text;
};

/* dims, strides: N, C, H, W. */
struct cudnn_tensor {
    int64_t id, alignment;
    cudnnDataType_t type;
    std::array<int64_t, 4> dims, strides;
    bool is_virtual, by_value;

    size_t element_bytes() const;
    size_t bytes() const; /* from the first element to the last */
};

/* What a tensor is to its operation. A convolution's x, w and y are so in every direction. */
enum cudnn_role {
    ROLE_NONE,
    ROLE_X,
    ROLE_W,
    ROLE_Y,
    ROLE_B,
    ROLE_DY,
    ROLE_DX,
    ROLE_SCALE,
    ROLE_SHIFT,
    ROLE_MEAN,
    ROLE_INV_STD,
    ROLE_EPS,
    ROLE_DSCALE,
    ROLE_DSHIFT
};

struct cudnn_operand {
    cudnn_tensor tensor;
    bool read, written;
};

struct cudnn_operation {
    cudnnBackendDescriptorType_t type;
    cudnnPointwiseMode_t mode; /* POINTWISE */
    bool training;             /* NORM_FORWARD */
    int64_t pad;               /* CONVOLUTION */
    float beta;
    std::map<cudnn_role, cudnn_operand> operands;

    const cudnn_tensor &operator[](cudnn_role role) const { return operands.at(role).tensor; }
    bool has(cudnn_role role) const { return operands.count(role) > 0; }
};

struct cudnn_content;

struct cudnn_attribute {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;                                 /* of all types but descriptors */
    std::vector<std::shared_ptr<const cudnn_content>> descs; /* of descriptors */
};

/* What a descriptor holds. It outlives the descriptor for others that refer to it. */
struct cudnn_content {
    cudnnBackendDescriptorType_t type;
    bool final;
    std::map<cudnnBackendAttributeName_t, cudnn_attribute> attributes;
    cudnn_tensor tensor; /* of a TENSOR, once final */
    std::vector<cudnn_operation>
        operations; /* an operation's own; a graph's, an engine's, a plan's */

    bool has(cudnnBackendAttributeName_t name) const { return attributes.count(name) > 0; }
    /* An attribute that is known to be there. */
    template <class T> T value(cudnnBackendAttributeName_t name, size_t at = 0) const {
        T value;
        memcpy(&value, attributes.at(name).bytes.data() + at * sizeof value, sizeof value);
        return value;
    }
    const cudnn_content &desc(cudnnBackendAttributeName_t name, size_t at = 0) const {
        return *attributes.at(name).descs.at(at);
    }
    template <class T>
    void put(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
             const std::vector<T> &values) {
        const char *from = reinterpret_cast<const char *>(values.data());
        attributes[name] = {type,
                            static_cast<int64_t>(values.size()),
                            {from, from + values.size() * sizeof(T)},
                            {}};
    }
};

/* An attribute's owner and type. count: 0 for any but none. */
enum cudnn_need { NEED_SET, NEED_NONE, NEED_GET_ONLY };
struct cudnn_field {
    cudnnBackendAttributeName_t name;
    cudnnBackendDescriptorType_t owner;
    cudnnBackendAttributeType_t type;
    int64_t count;
    cudnn_need need;
    cudnn_role role;
    bool read, written;
};
/* Refused where there is no such attribute of this owner and type. */
const cudnn_field &cudnn_field_of(const cudnn_content &c, cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type);

/* Refuses what is missing or wrong; else fills in tensor and operations. */
void cudnn_check(cudnn_content *c);
/* Has the real cuDNN an engine for these? */
bool cudnn_supported(const std::vector<cudnn_operation> &operations);
/* Does the graph read or write float data? */
bool cudnn_is_float(const std::vector<cudnn_operation> &operations);

/* Runs the operations in order. memory: of real tensors, by their ids; scalars: those by value. */
void cudnn_compute(const std::vector<cudnn_operation> &operations,
                   const std::map<int64_t, void *> &memory,
                   const std::map<int64_t, float> &scalars);

#endif
