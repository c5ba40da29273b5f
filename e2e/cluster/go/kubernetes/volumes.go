// Makes the volumes of the one-machine cluster: a folder on the disk for each claim.
//
// A storage class says with its parameter "reach" whether a volume belongs to the node of its first pod
// ("node", as a local disk does) or can be mounted on every node ("cluster", as a network disk can).
// Volumes are of the kind "local", because the kubelet applies a pod's fsGroup to these and not to hostPath. The program is one of
// this binary's, because it needs little that the others don't.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// The name by which storage classes choose this program.
const provisionerName = "cadre.local/volumes"

type folders struct {
	root   string
	client kubernetes.Interface
}

func (f folders) Provision(ctx context.Context, options controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	owner, nodes, err := f.reach(ctx, options)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	if mode := options.PVC.Spec.VolumeMode; mode != nil && *mode == v1.PersistentVolumeBlock {
		return nil, controller.ProvisioningFinished, fmt.Errorf("this cluster has no block volumes")
	}
	folder := filepath.Join(f.root, owner, options.PVName)
	// Another user's pod must be able to write without an fsGroup; Chmod because the umask narrows what MkdirAll sets.
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	return volume(options, folder, nodes), controller.ProvisioningFinished, nil
}

// Delete removes the folder, and nothing that lies outside of the root.
func (f folders) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	if volume.Spec.Local == nil {
		return &controller.IgnoredError{Reason: "it is no local volume"}
	}
	folder := filepath.Clean(volume.Spec.Local.Path)
	if filepath.Dir(filepath.Dir(folder)) != filepath.Clean(f.root) || filepath.Base(folder) != volume.Name {
		return &controller.IgnoredError{Reason: "its folder was not made by this program"}
	}
	return os.RemoveAll(folder)
}

// reach gives the folder's owner and the nodes that can mount it.
func (f folders) reach(ctx context.Context, options controller.ProvisionOptions) (string, []string, error) {
	switch reach := options.StorageClass.Parameters["reach"]; reach {
	case "node":
		node := options.SelectedNodeName
		if node == "" {
			return "", nil, fmt.Errorf("no node is selected: the storage class needs volumeBindingMode WaitForFirstConsumer")
		}
		if slices.Contains(options.PVC.Spec.AccessModes, v1.ReadWriteMany) {
			return "", nil, fmt.Errorf("a volume of one node can't be ReadWriteMany: use a storage class that reaches the cluster")
		}
		return node, []string{node}, nil
	case "cluster":
		list, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", nil, err
		}
		var nodes []string
		for _, node := range list.Items {
			nodes = append(nodes, node.Labels[v1.LabelHostname])
		}
		return "cluster", nodes, nil
	default:
		return "", nil, fmt.Errorf("the parameter reach is %q: it must be node or cluster", reach)
	}
}

func volume(options controller.ProvisionOptions, folder string, nodes []string) *v1.PersistentVolume {
	claim := options.PVC.Spec
	host := v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: nodes}
	term := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{host}}
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   claim.AccessModes,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: claim.Resources.Requests[v1.ResourceStorage]},
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			PersistentVolumeSource:        v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: folder}},
			NodeAffinity:                  &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term}}},
		},
	}
}

func newVolumesCommand() *cobra.Command {
	var kubeconfig, root string
	command := &cobra.Command{Use: "volumes", RunE: func(_ *cobra.Command, _ []string) error {
		if root == "" {
			return errors.New("--root is needed")
		}
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return err
		}
		return provision(config, root)
	}}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "the file that says how to reach the cluster")
	command.Flags().StringVar(&root, "root", "", "the folder that holds the volumes")
	return command
}

func provision(config *rest.Config, root string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	// One instance runs, so that electing a leader would only delay it.
	provisioner := folders{root: root, client: client}
	controller.NewProvisionController(ctx, client, provisionerName, provisioner, controller.LeaderElection(false)).Run(ctx)
	return nil
}
